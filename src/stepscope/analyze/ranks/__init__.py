"""Rank against rank: what each computed, communicated and waited for in the window, collective by collective,
and which rank is late."""

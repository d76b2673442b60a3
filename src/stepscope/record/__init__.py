"""The job side: times steps and regions, profiles a window, writes through a helper process."""

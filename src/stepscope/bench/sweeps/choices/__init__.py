"""The choices that can be swept, one file each: their variants and how closely results have to agree."""

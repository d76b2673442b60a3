"""The analysis as the JSON document of the contract."""

"""The analysis as the JSON document of the contract (schema 1). Reports, comparisons and gates all read this one."""

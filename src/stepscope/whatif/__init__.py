"""What the step would take if something were different: settings by name, the changes they stand for, and the fixes
that the rules propose."""

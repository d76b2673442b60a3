"""When the steps of a rank begin and end, and what they consist of: periods, regions and phases of training, the
parts of a budget, and how steady the steps are."""

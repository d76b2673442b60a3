"""From findings and budget to one headline: the category of the largest fixable loss, whether the replay agrees that
removing it helps, and the sentence that says so."""

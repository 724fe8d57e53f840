"""Questions with known answers: multiple choice, last words, and answers that the model writes."""

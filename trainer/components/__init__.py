"""What a training step is made from: the model, its loss, its optimizer and the learning rate."""

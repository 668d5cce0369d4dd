"""What is shipped besides the code: examples, manifests, the image and the way it is all checked."""

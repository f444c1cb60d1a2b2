"""What is published: the wheel, environments made from it, the images, and the TypeScript client."""

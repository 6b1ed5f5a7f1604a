"""What training needs on top of the collectives: reduced gradients, for tapes and optimizers."""

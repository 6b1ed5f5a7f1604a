"""What jobs on the engines of other projects share: Ray, Spark."""

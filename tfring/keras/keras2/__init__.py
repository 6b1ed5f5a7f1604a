"""What optimizers and models of Keras 2 (the package tf_keras) need of their own."""

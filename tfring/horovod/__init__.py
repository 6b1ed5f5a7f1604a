"""What Horovod's scripts expect beside the collectives: names, answers, `import horovod`."""

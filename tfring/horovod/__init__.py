"""For Horovod scripts, besides the collectives: names, backend queries, `import horovod`."""

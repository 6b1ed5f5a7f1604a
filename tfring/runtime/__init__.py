"""What every part of tfring stands on: settings, topology, process sets, errors, log, signals."""

"""HTTP: parse, authorise, one use case, render. The records of ``wire.protocol`` are the bodies."""

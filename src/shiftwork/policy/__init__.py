"""One small pure module per policy: settings in, a decision out."""

"""One module per command. Each imports what needs torch inside its function, so that the base install stays light."""

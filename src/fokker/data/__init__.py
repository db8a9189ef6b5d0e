"""Where rows come from (``sources``) and which rows make a minibatch (``batches``)."""

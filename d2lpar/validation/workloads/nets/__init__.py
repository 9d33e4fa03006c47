"""The networks that published figures are of."""

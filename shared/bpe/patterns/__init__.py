"""The patterns that split text into pretokens."""

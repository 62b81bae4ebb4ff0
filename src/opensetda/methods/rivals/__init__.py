"""The methods that PGL is measured against."""

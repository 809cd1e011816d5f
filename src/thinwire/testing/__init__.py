"""The laws that codecs and feedback keep. Public, so that authors of others can run them too.

Our own suite runs ``check_codec`` over the whole registry: a codec is tested before its author has
written a test.
"""

from thinwire.testing.codec import check_codec
from thinwire.testing.feedback import check_feedback

__all__ = ["check_codec", "check_feedback"]

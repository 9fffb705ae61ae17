"""Fewer examples of hypothesis than the profile's, for tests whose examples are dear."""

from hypothesis import settings

#: Where one example takes a tenth of a second and more: `@few_examples` in place of `@settings`.
few_examples = settings(max_examples=settings().max_examples // 8)

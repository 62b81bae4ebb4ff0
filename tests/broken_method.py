"""A method that fails, to see that a grid goes on; the tests add it to the registry."""

from __future__ import annotations

from typing import ClassVar

from opensetda.means.estimator import ClassMeans


class Broken(ClassMeans):
    """Raises what it is told to, at the fits that it is told."""

    error: ClassVar[BaseException] = RuntimeError("out of order\nsecond line")
    fits: ClassVar[list[int]] = []
    fails_at: ClassVar[range] = range(1000)

    def _fit_domains(self, source, y, target, share, context):
        number = len(self.fits)
        self.fits.append(number)
        if number in self.fails_at:
            raise self.error
        return super()._fit_domains(source, y, target, share, context)

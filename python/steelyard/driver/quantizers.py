"""The quantizers and amax algorithms that a user's own recipe gives to each layer."""

from typing import Any

from steelyard.driver.settings import Settings
from steelyard.errors import InternalError
from steelyard.recipes import AMAX_ALGORITHM, CustomRecipe, Role


class UserQuantizers:
    """A user's own quantizers by layer and role; the recipe is asked once for each."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._known: dict[tuple[str, str], Any] = {}

    def __getitem__(self, key: tuple[str, str]) -> Any:
        if key not in self._known:
            self._known[key] = self._make(*key)
        return self._known[key]

    def _make(self, layer: str, role: str) -> Any:
        recipe = self._settings.overrides.recipe_of(layer, self._settings.recipe)
        delayed = None if recipe is None else recipe.delayed()
        if role == AMAX_ALGORITHM and delayed is not None:
            return delayed.amax_compute_algo
        if isinstance(recipe, CustomRecipe):
            return recipe.quantizer(Role(role, layer))
        raise InternalError(f"layer '{layer}' must have a custom recipe for its {role}, got {recipe}")

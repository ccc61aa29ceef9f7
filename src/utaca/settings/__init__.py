"""Settings: the typed config (:mod:`utaca.settings.schema`), its composition from ``config/`` and its checks.

Nothing is imported here, so that an edit in the composition reruns no stage.
"""

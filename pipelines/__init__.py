"""Ready-made pipelines: functions that return a :class:`gpupipe.transforms.Compose`. Installed as
``gpupipe.pipelines``."""

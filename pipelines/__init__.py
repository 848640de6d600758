"""Ready-made pipelines, installed as ``gpupipe.pipelines``. Each function returns a
:class:`gpupipe.transforms.Compose`."""

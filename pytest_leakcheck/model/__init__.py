"""Value types shared by all packages of the plugin, with their JSON form.

They describe resources, recordings, verdicts, findings and culprits. This package imports no other package of the plugin.
"""

"""One small module for each host that starts processes: each imports its host, nothing imports it.

==========================================  ===============================  ==================
module                                      host                             installed with
==========================================  ===============================  ==================
:mod:`netless.integrations.build`           build, any PEP 517 front end     ``netless[build]``
:mod:`netless.integrations.jupyter`         Jupyter, nbclient, papermill     ``netless[jupyter]``
:mod:`netless.integrations.mcp`             the MCP Python SDK               ``netless[mcp]``
:mod:`netless.integrations.tox`             tox 4                            ``netless[tox]``
==========================================  ===============================  ==================
"""

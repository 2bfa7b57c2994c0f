"""What the backends that run on this machine's processor share. No backend is here.

Modules: exported (graph to torch.export), operators (listed once for all conversions), declare (the Compiled around an
artifact), threads (the one budget), memory (views as arrays), options (what the processor has), packages (versions),
refusal (a converter's own words).
"""

"""One file per way of choosing which layers run. To add one: a file here, and its name in the union below."""

from anydepth.depth.full import Full, FullConfig
from anydepth.depth.latent import Latent, LatentConfig
from anydepth.depth.layerdrop import LayerDrop, LayerDropConfig
from anydepth.depth.perword import PerWord, PerWordConfig
from anydepth.depth.policy import Depth
from anydepth.depth.prefix import Prefix, PrefixConfig
from anydepth.depth.recurrent import Recurrent, RecurrentConfig
from anydepth.depth.rezero import ReZero, ReZeroConfig
from anydepth.depth.subnetwork import Subnetwork, SubnetworkConfig

DepthConfig = (
    FullConfig
    | PrefixConfig
    | SubnetworkConfig
    | RecurrentConfig
    | LayerDropConfig
    | LatentConfig
    | ReZeroConfig
    | PerWordConfig
)

__all__ = [
    "Depth",
    "DepthConfig",
    "Full",
    "Latent",
    "LatentConfig",
    "LayerDrop",
    "PerWord",
    "Prefix",
    "ReZero",
    "Recurrent",
    "Subnetwork",
]

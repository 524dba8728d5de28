"""One file per way of choosing which layers run. To add one: a file here, and its name in the union below."""

from anydepth.depth.full import FullConfig
from anydepth.depth.latent import Latent, LatentConfig
from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.depth.policy import Depth
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig

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

__all__ = ["Depth", "DepthConfig", "Latent"]

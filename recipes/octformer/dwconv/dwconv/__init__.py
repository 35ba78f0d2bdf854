"""out[n, c] = sum over k of weight[k, c] * data[neigh[n, k], c]; a neighbour below 0 is not there."""

from dwconv.function import OctreeDWConv, octree_dwconv

__all__ = ["OctreeDWConv", "octree_dwconv"]

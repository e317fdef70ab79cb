"""A cluster of two nodes for ranks, all on this machine; a line of its input names the node that is to be killed."""

import sys

import ray
from ray.cluster_utils import Cluster

# Ray's own processes are on a node without room for ranks.
head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": sys.argv[1]}
cluster = Cluster(initialize_head=True, head_node_args=head)
nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
# On a busy machine, a node takes longer than Ray's own limit.
cluster.wait_for_nodes(300)
print(cluster.address, flush=True)
for line in sys.stdin:
    node = next(one for one in nodes if one.node_id.startswith(line.strip()))
    cluster.remove_node(node, allow_graceful=False)
cluster.shutdown()
ray.shutdown()

#include <cstdint>

#include "ops/runtime/base/export.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"

// Returns the microseconds for which this process has waited in GetNext of tf.data iterators, as
// TensorFlow counts them; -1 if it does not count. Python has no access to that counter.
extern "C" TFRING_EXPORT int64_t TfringInputMicroseconds() {
  using tensorflow::monitoring::CollectionRegistry;
  CollectionRegistry::CollectMetricsOptions options;
  options.collect_metric_descriptors = false;
  const auto metrics = CollectionRegistry::Default()->CollectMetrics(options);
  const auto found = metrics->point_set_map.find("/tensorflow/data/iterator_busy");
  // A counter has no point before its first count.
  if (found == metrics->point_set_map.end()) return -1;
  return found->second->points.empty() ? 0 : found->second->points.front()->int64_value;
}

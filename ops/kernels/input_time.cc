#include <cstdint>

#include "ops/runtime/base/export.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"

// Microseconds for which programs have waited in GetNext of tf.data iterators, in this process so
// far, as TensorFlow counts them; -1 if it does not. Python has no access to that counter.
extern "C" TFRING_EXPORT int64_t TfringInputMicroseconds() {
  using tensorflow::monitoring::CollectionRegistry;
  CollectionRegistry::CollectMetricsOptions options;
  options.collect_metric_descriptors = false;
  const auto metrics = CollectionRegistry::Default()->CollectMetrics(options);
  const auto found = metrics->point_set_map.find("/tensorflow/data/iterator_busy");
  // A counter that nothing has counted with has no point yet.
  if (found == metrics->point_set_map.end()) return -1;
  return found->second->points.empty() ? 0 : found->second->points.front()->int64_value;
}

#include <algorithm>

#include "ops/sim/control/step_cost.h"

namespace tfring::sim {
namespace {

// A convolution without bias, and the batch normalisation behind it.
void AddConvolution(int64_t kernel, int64_t inputs, int64_t outputs, std::vector<Shape>* shapes) {
  shapes->push_back({kernel, kernel, inputs, outputs});
  shapes->push_back({outputs});
  shapes->push_back({outputs});
}

std::vector<Shape> ResNet50Shapes() {
  std::vector<Shape> shapes;
  AddConvolution(7, 3, 64, &shapes);
  int64_t channels = 64;
  int64_t width = 64;
  for (int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      if (block == 0) AddConvolution(1, channels, 4 * width, &shapes);  // the shortcut
      AddConvolution(1, channels, width, &shapes);
      AddConvolution(3, width, width, &shapes);
      AddConvolution(1, width, 4 * width, &shapes);
      channels = 4 * width;
    }
    width *= 2;
  }
  shapes.push_back({channels, 1000});
  shapes.push_back({1000});
  return shapes;
}

}  // namespace

std::vector<Request> GradientRequests(int tensors) {
  const std::vector<Shape> shapes = ResNet50Shapes();
  std::vector<Request> requests;
  for (int i = 0; i < tensors; ++i) {
    Request request;
    request.name = "optimizer.0." + std::to_string(requests.size());
    request.postscale = 0.5;  // an average has a factor
    request.call_site = "train.py:40";
    request.shapes = {shapes[static_cast<size_t>(i) % shapes.size()]};
    requests.push_back(std::move(request));
  }
  std::reverse(requests.begin(), requests.end());
  return requests;
}

}  // namespace tfring::sim

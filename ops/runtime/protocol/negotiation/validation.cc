#include "ops/runtime/protocol/negotiation/validation.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "ops/runtime/protocol/negotiation/negotiated_values.h"
#include "ops/runtime/protocol/negotiation/readiness.h"

namespace tfring {
namespace {

// An error message lists at most this many different values.
constexpr size_t kMaxValuesNamed = 8;
// Bounds the frame of one plan.
constexpr size_t kMaxNegotiatedValues = 1u << 20;

std::string DoubleText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

std::string HashText(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// Whether the shapes agree in all that the kind needs.
bool SameShape(CollectiveKind kind, const Shape& a, const Shape& b) {
  if (kind == CollectiveKind::kSendRecv) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](int64_t x, int64_t y) { return x == y || x == -1 || y == -1; });
  }
  if (!Traits(kind).own_rows()) return a == b;
  return a.size() == b.size() && (a.empty() || std::equal(a.begin() + 1, a.end(), b.begin() + 1));
}

// A receiver may leave the shape to the sender.
bool SameCount(const Request& a, const Request& b) {
  return a.shapes.size() == b.shapes.size() ||
         (a.kind == CollectiveKind::kSendRecv && (a.shapes.empty() || b.shapes.empty()));
}

// One property that the ranks have to agree on.
struct Property {
  const char* what;
  bool (*same)(const Request& a, const Request& b);
  std::string (*text)(const Request& request);
  const char* advice;
};

constexpr const char* kSameCall = "Every rank has to make the same call under one name.";

// The first property that differs is reported: the most fundamental comes first. Shapes come after
// all of them, because what they have to agree on depends on the kind.
const Property kProperties[] = {
    {"the kind of collective", [](const Request& a, const Request& b) { return a.kind == b.kind; },
     [](const Request& r) { return std::string(CollectiveKindName(r.kind)); },
     "Give each collective a name of its own, the same on every rank."},
    {"the line of the program that makes the call",
     [](const Request& a, const Request& b) {
       return !CallSiteCounts(a) || !CallSiteCounts(b) || a.call_site == b.call_site;
     },
     [](const Request& r) { return r.call_site.empty() ? "an unknown line" : r.call_site; },
     "Calls without a name are matched by their order alone, so different values would be mixed: "
     "give each call a name (name='...') that is the same on every rank, or make the same calls in "
     "the same order on every rank. (TFRING_CALL_SITE_CHECK=0 turns this check off.)"},
    {"the dtype", [](const Request& a, const Request& b) { return a.dtype == b.dtype; },
     [](const Request& r) { return std::string(DataTypeName(r.dtype)); },
     "Cast the tensor to one dtype on every rank (mixed precision has to be on everywhere or "
     "nowhere)."},
    {"the reduce op",
     [](const Request& a, const Request& b) { return !Traits(a.kind).reduces || a.op == b.op; },
     [](const Request& r) { return std::string(ReduceOpName(r.op)); }, kSameCall},
    {"the root rank",
     [](const Request& a, const Request& b) {
       return !Traits(a.kind).has_root() || a.root == b.root;
     },
     [](const Request& r) { return "root " + std::to_string(r.root); }, kSameCall},
    {"the receiver",
     [](const Request& a, const Request& b) {
       return a.kind != CollectiveKind::kSendRecv || a.peer == b.peer;
     },
     [](const Request& r) { return "to rank " + std::to_string(r.peer); },
     "Both ranks have to name the same source and destination."},
    {"the ranks of the process set",
     [](const Request& a, const Request& b) { return a.set_ranks == b.set_ranks; },
     [](const Request& r) { return ShapeString(Shape(r.set_ranks.begin(), r.set_ranks.end())); },
     "All ranks have to add and remove the same process sets in the same order."},
    {"the id of the process set",
     [](const Request& a, const Request& b) { return a.removed_set == b.removed_set; },
     [](const Request& r) { return std::to_string(r.removed_set); },
     "All ranks have to add and remove the same process sets in the same order."},
    {"the prescale factor",
     [](const Request& a, const Request& b) {
       return !Traits(a.kind).reduces || a.prescale == b.prescale;
     },
     [](const Request& r) { return DoubleText(r.prescale); }, kSameCall},
    {"the postscale factor",
     [](const Request& a, const Request& b) {
       return !Traits(a.kind).reduces || a.postscale == b.postscale;
     },
     [](const Request& r) { return DoubleText(r.postscale); }, kSameCall},
    {"the number of tensors", [](const Request& a, const Request& b) { return SameCount(a, b); },
     [](const Request& r) { return std::to_string(r.shapes.size()); },
     "Every rank has to pass a list of the same length; do all ranks build the same model?"},
    {"the bucket layout",
     [](const Request& a, const Request& b) { return a.layout_hash == b.layout_hash; },
     [](const Request& r) { return "layout " + HashText(r.layout_hash); },
     "The ranks cut their gradients into different buckets: build the same model with the same "
     "settings (op, groups, sparse_as_dense) on every rank."},
    {"being a group", [](const Request& a, const Request& b) { return a.group == b.group; },
     [](const Request& r) { return std::string(r.group ? "a grouped call" : "a single call"); },
     kSameCall},
};

// "float32 on ranks 0, 2-5; float64 on rank 1".
template <typename Text>
std::string ValuesByRank(const std::vector<Rank>& members,
                         const std::vector<const Request*>& requests, const Text& text) {
  std::vector<std::pair<std::string, std::vector<Rank>>> groups;
  size_t others = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string value = text(*requests[i]);
    const auto it = std::find_if(groups.begin(), groups.end(),
                                 [&](const auto& group) { return group.first == value; });
    if (it != groups.end()) {
      it->second.push_back(members[i]);
    } else if (groups.size() < kMaxValuesNamed) {
      groups.emplace_back(value, std::vector<Rank>{members[i]});
    } else {
      ++others;
    }
  }
  std::string all;
  for (const auto& [value, ranks] : groups) {
    if (!all.empty()) all += "; ";
    all += value + " on " + RanksText(ranks);
  }
  if (others > 0) all += "; others on " + std::to_string(others) + " more ranks";
  return all;
}

std::string Beginning(const Request& request) {
  std::string text = "tensor '" + request.name + "'";
  if (request.process_set != kGlobalProcessSet) {
    text += " of process set " + std::to_string(request.process_set);
  }
  return text + ": the ranks disagree on ";
}

Status ShapeMismatch(const std::vector<Rank>& members, const std::vector<const Request*>& requests,
                     size_t tensor) {
  const Request& first = *requests[0];
  std::string what = "the shape";
  if (first.shapes.size() > 1) {
    what += " of element " + std::to_string(tensor) + " of " + std::to_string(first.shapes.size());
  }
  const char* advice =
      Traits(first.kind).own_rows()
          ? "Only the first dimension may differ; all others have to be the same."
      : first.kind == CollectiveKind::kSendRecv
          ? "The receiver has to expect what the sender sends; -1 is any size."
          : "The shape has to be the same on every rank; do all ranks build the same model, and "
            "use batches of one size where the shape depends on them?";
  return FailedPrecondition(Beginning(first) + what + ": " +
                            ValuesByRank(members, requests,
                                         [tensor](const Request& r) {
                                           return tensor < r.shapes.size()
                                                      ? ShapeString(r.shapes[tensor])
                                                      : "any shape";
                                         }) +
                            ". " + advice);
}

using Lines = std::vector<std::string>;

// What another rank sends is not trusted to have a kind, a name and a tab in each line.
Lines LinesOf(const std::string& layout) {
  Lines lines;
  std::istringstream text(layout);
  for (std::string line; std::getline(text, line);) {
    const size_t tab = line.find('\t');
    if (tab != 0 && tab != std::string::npos) lines.push_back(line);
  }
  return lines;
}

std::string GradientText(const Lines& lines, size_t variable) {
  if (variable >= lines.size()) return "no variable " + std::to_string(variable + 1);
  const std::string& line = lines[variable];
  const size_t tab = line.find('\t');
  const std::string name = "'" + line.substr(1, tab - 1) + "' " + line.substr(tab + 1);
  switch (line[0]) {
    case 'N':
      return name + " has no gradient";
    case 'D':
      return name + " has a dense gradient";
    case 'A':
      return name + " has a sparse gradient with sparse_as_dense='auto'";
    default:
      return name + " has a sparse gradient";
  }
}

const char* GradientAdvice(const std::string& kinds) {
  const bool everywhere = kinds.find('-') == std::string::npos;
  if (everywhere && kinds.find('N') != std::string::npos) {
    return "Compute this part of the model on every rank. Or make its gradient zeros where it is "
           "not used: tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO), or "
           "in fit add 0 * tf.reduce_sum(its output) to the loss.";
  }
  if (everywhere && kinds.find_first_not_of(kinds[0]) != std::string::npos) {
    return "Give DistributedOptimizer or DistributedGradientTape sparse_as_dense=True on every "
           "rank, or use the variable in the same way on every rank.";
  }
  return "Build the same model on every rank: the same layers, sizes, dtypes and trainable "
         "variables, in the same order.";
}

// Not ok if the ranks' gradients differ; the message names the first variable that does.
// Names are compared only where a variable is missing: Keras numbers them as it makes them.
Status CompareGradients(const std::vector<Rank>& members,
                        const std::vector<const Request*>& requests, const Layouts& layouts) {
  const auto same_hash = [&](const Request* other) {
    return other->layout_hash == requests[0]->layout_hash;
  };
  if (std::all_of(requests.begin(), requests.end(), same_hash)) return OkStatus();
  std::map<uint64_t, Lines> lines;
  size_t most = 0;
  size_t fewest = SIZE_MAX;
  for (const Request* request : requests) {
    const auto layout = layouts.find(request->layout_hash);
    if (layout == layouts.end()) return OkStatus();
    Lines& own = lines[request->layout_hash];
    if (own.empty()) own = LinesOf(layout->second);
    most = std::max(most, own.size());
    fewest = std::min(fewest, own.size());
  }
  const auto compared = [&](const Lines& of, size_t i) {
    if (i >= of.size()) return std::string();
    return most == fewest ? of[i][0] + of[i].substr(of[i].find('\t')) : of[i];
  };
  for (size_t i = 0; i < most; ++i) {
    std::string kinds;
    bool same = true;
    for (const auto& [hash, of] : lines) {
      same = same && compared(of, i) == compared(lines.begin()->second, i);
      kinds += i < of.size() ? of[i][0] : '-';
    }
    if (same) continue;
    return FailedPrecondition(
        Beginning(*requests[0]) + "their gradients: " +
        ValuesByRank(members, requests,
                     [&](const Request& r) { return GradientText(lines[r.layout_hash], i); }) +
        ". " + GradientAdvice(kinds));
  }
  return OkStatus();
}

// Not ok if some ranks refused their own calls: the first reason, and the ranks that gave it.
Status Refusals(const std::vector<Rank>& members, const std::vector<const Request*>& requests) {
  const Request* refused = nullptr;
  std::vector<Rank> ranks;
  for (size_t i = 0; i < members.size(); ++i) {
    if (requests[i]->refusal.empty()) continue;
    if (refused == nullptr) refused = requests[i];
    if (requests[i]->refusal == refused->refusal) ranks.push_back(members[i]);
  }
  if (refused == nullptr) return OkStatus();
  return InvalidArgument("the call is invalid on " + RanksText(ranks) + ": " + refused->refusal);
}

}  // namespace

Status ValidateAgreement(const std::vector<Rank>& members,
                         const std::vector<const Request*>& requests, const Layouts& layouts) {
  TFRING_RETURN_IF_ERROR(Refusals(members, requests));
  TFRING_RETURN_IF_ERROR(CompareGradients(members, requests, layouts));
  const Request& first = *requests[0];
  std::vector<const Request*> others;
  for (const Request* request : requests) {
    if (*request == first) continue;
    others.push_back(request);
    for (const Property& property : kProperties) {
      if (property.same(first, *request)) continue;
      return FailedPrecondition(Beginning(first) + property.what + ": " +
                                ValuesByRank(members, requests, property.text) + ". " +
                                property.advice);
    }
  }
  // All have the same number of shapes, except receivers, which may have none.
  for (const Request* request : others) {
    const size_t shapes = std::min(first.shapes.size(), request->shapes.size());
    for (size_t t = 0; t < shapes; ++t) {
      if (!SameShape(first.kind, first.shapes[t], request->shapes[t])) {
        return ShapeMismatch(members, requests, t);
      }
    }
  }
  if (NegotiatedValuesCount(first, members.size()) > kMaxNegotiatedValues) {
    return InvalidArgument(Describe(first) + SetText(first.process_set) +
                           ": too many tensors for one call on " + std::to_string(members.size()) +
                           " ranks; split the list");
  }
  return OkStatus();
}

Status ValidateValues(const std::vector<Rank>& members, const std::vector<int64_t>& values,
                      const Request& request) {
  if (NegotiatedValuesCountable(values, members.size(), request)) return OkStatus();
  return InvalidArgument(Describe(request) + SetText(request.process_set) +
                         ": the tensors of ranks " + RanksString(members) +
                         " together hold more rows or bytes than can be counted; split them");
}

}  // namespace tfring

#include "ops/runtime/process/call_notes.h"

#include <unordered_map>
#include <utility>

namespace tfring {
namespace {

thread_local CallSite current_site;

struct LayoutRegistry {
  std::mutex mutex;  // guards texts
  std::unordered_map<uint64_t, std::string> texts;
};

LayoutRegistry& TheLayouts() {
  // Calls may be made while the process ends.
  static LayoutRegistry* const registry = new LayoutRegistry();
  return *registry;
}

}  // namespace

void SetCallSite(CallSite site) { current_site = std::move(site); }

void AddCallSite(Request* request) {
  CallSite site = std::exchange(current_site, {});
  if (!request->call_site.empty()) return;
  request->call_site = std::move(site.line);
  request->unnamed = site.unnamed;
}

void DescribeLayout(uint64_t hash, std::string text) {
  if (text.size() > kMaxLayoutBytes) return;
  LayoutRegistry& registry = TheLayouts();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.texts[hash] = std::move(text);
}

void LayoutTexts::AddTo(Request* request) {
  if (request->layout_hash == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (told_.count(request->layout_hash) > 0) return;
  LayoutRegistry& registry = TheLayouts();
  std::lock_guard<std::mutex> registry_lock(registry.mutex);
  const auto found = registry.texts.find(request->layout_hash);
  if (found == registry.texts.end()) return;
  request->layout = found->second;
  told_.insert(request->layout_hash);
}

}  // namespace tfring

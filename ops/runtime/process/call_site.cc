#include "ops/runtime/process/call_site.h"

#include <utility>

namespace tfring {
namespace {

thread_local CallSite current_site;

}  // namespace

void SetCallSite(CallSite site) { current_site = std::move(site); }

void AddCallSite(Request* request) {
  CallSite site = std::exchange(current_site, {});
  if (!request->call_site.empty()) return;
  request->call_site = std::move(site.line);
  request->unnamed = site.unnamed;
}

}  // namespace tfring

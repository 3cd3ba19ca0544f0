// Figures of a model for people: the use of its memory, and its report as a page.
#include <limits>

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "abele/model.h"
#include "api/core.h"
#include "report/report_page.h"

namespace abele {

int64_t DeviceMemory::spareBytes() const {
  return limit_bytes ? *limit_bytes - peak_bytes : std::numeric_limits<int64_t>::max();
}

void CompiledModel::report(const std::string& path) {
  const Call call = enter();
  session::Session& session = call->compiled("report()");
  const char* const kind = session.executable().training ? "training" : "inference";
  const torch::nn::Module* const module = call->module();
  report::PageTitle title{.title = module == nullptr ? kind : module->name() + ", " + kind, .kind = kind};
  const auto options = nlohmann::json::parse(call->options().toJson());
  for (const auto& [name, value] : options.items())
    title.options.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  report::writeReportPage(path, session, title);
}

void writeReport(const std::string& path, const std::string& trace) { report::writeTracePage(path, trace); }

}  // namespace abele

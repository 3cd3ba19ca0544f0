// What a compilation writes for people: its graphs, in the log and in the file that POPTORCH_EXPORT_PROTO_FILE names,
// and the file of initial weights.
#include <filesystem>
#include <fstream>

#include <ATen/core/Tensor.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "compile/tensors.h"
#include "exe/executable.h"
#include "ir/text.h"
#include "memory/offload.h"
#include "session/impl.h"

namespace abele::session {
namespace {

/// The first lines of a text, and the number of lines left out. limit <= 0: the whole text.
std::string firstLines(const std::string& text, int64_t limit) {
  if (limit <= 0) return text;
  size_t end = 0;
  for (int64_t line = 0; line < limit && end != std::string::npos; ++line)
    end = text.find('\n', end == 0 ? 0 : end + 1);
  if (end == std::string::npos || end + 1 >= text.size()) return text;
  int64_t left = 0;
  for (size_t i = end + 1; i < text.size(); ++i) left += text[i] == '\n';
  return cat(text.substr(0, end + 1), "... and ", left, " lines (POPTORCH_MAX_GRAPH_LEN)\n");
}

/// The graph after the passes. If the cache had the program, only the captured graph exists, and it is returned.
const ir::Graph& shownGraph(const Compiled& compiled) {
  return compiled.is_made_here ? compiled.graph : compiled.captured;
}

[[noreturn]] void refuse(const std::string& path, const std::string& found) {
  throwUser(ErrorCode::E0702, {.what = cat("POPTORCH_EXPORT_PROTO_FILE is ", path, ", which cannot be written"),
                               .found = found,
                               .expected = "a file or folder that can be written"});
}

void exportTo(const std::string& target, const Compiled& compiled) {
  namespace fs = std::filesystem;
  fs::path path(target);
  std::error_code error;
  if (fs::is_directory(path, error) || !path.has_filename()) path /= "model.proto";
  error.clear();  // the write below reports the failure
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) refuse(target, error.message());
  const bool binary = environmentInteger("POPTORCH_EXPORT_PROTO_AS_BINARY", 0) != 0;
  try {
    writeWholeFile(path.string(), binary ? exe::encode(compiled.executable) : ir::print(shownGraph(compiled)));
  } catch (const UserError& failure) {
    refuse(target, cat(path.string(), ": ", failure.message().found));
  }
  log::info("graph written to ", path.string());
}

}  // namespace

void showCompiled(const Compiled& compiled) {
  if (log::enabled(log::Level::kTrace)) {
    const int64_t limit = environmentInteger("POPTORCH_MAX_GRAPH_LEN", 10);
    log::trace("captured graph:\n", firstLines(ir::print(compiled.captured), limit));
    log::trace("lowered graph:\n", firstLines(ir::print(shownGraph(compiled)), limit));
  } else if (log::shows(log::Detail::kGraphs)) {
    log::debug("compiled graph:\n", ir::print(shownGraph(compiled)));
  }
  const std::string target = environmentText("POPTORCH_EXPORT_PROTO_FILE");
  if (!target.empty()) exportTo(target, compiled);
}

void saveInitializers(const std::vector<capture::ModelTensor>& model, const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  for (const capture::ModelTensor& m : model) {
    if (!m.tensor->defined() || !m.tensor->device().is_cpu() || m.tensor->layout() != at::kStrided) continue;
    compile::requireMemory(*m.tensor, m.name);
    {
      const at::Tensor dense = m.tensor->detach().contiguous();
      file.write(static_cast<const char*>(dense.const_data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
    }
    memory::releaseIfOffloaded(*m.tensor);
  }
  file.close();
  ABELE_REQUIRE(file, E0712,
                {.what = "the weights cannot be written to the file of saveInitializersToFile",
                 .at = path,
                 .remedy = "name a file in a folder that exists, or remove the setting"});
}

}  // namespace abele::session

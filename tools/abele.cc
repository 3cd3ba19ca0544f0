// The one command: `abele NAME ...` starts the program abele-NAME in the same folder. So an installation has the
// commands of its own languages, Python or C++, and `abele --help` lists only those.
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/version.h"

namespace {

using namespace abele;
namespace fs = std::filesystem;

constexpr const char* kPrefix = "abele-";

// In the order of the help. A program that is not listed here is a command without a description.
constexpr struct {
  const char* name;
  const char* summary;
} kCommands[] = {
    {"env", "versions, devices, and whether a pipeline trains here"},
    {"run", "train or serve a saved program on tensors of a file, without Python"},
    {"verify", "compare the models of a Python program with eager PyTorch, bit for bit"},
    {"monitor", "show which processes have devices, and how busy these are"},
    {"report", "write a trace as a page: timeline, times, and where they go"},
    {"opt", "print graphs, plans and executables; run passes and find the one that is wrong"},
    {"sim", "predict step time, waiting and memory of a schedule"},
};

// The folder of the path that this was called by, which may be a link: the commands are beside the link.
fs::path folder() {
  const auto* called = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  return fs::absolute(called != nullptr ? called : "/proc/self/exe").parent_path();
}

// The commands in the folder: names without the prefix, those of the table first.
std::vector<std::string> commandsIn(const fs::path& folder) {
  std::vector<std::string> found, listed;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (const std::string name = entry.path().filename();
        name.rfind(kPrefix, 0) == 0 && entry.is_regular_file(error) && ::access(entry.path().c_str(), X_OK) == 0)
      found.push_back(name.substr(std::strlen(kPrefix)));
  std::sort(found.begin(), found.end());
  for (const auto& command : kCommands)
    if (const auto at = std::find(found.begin(), found.end(), command.name); at != found.end()) {
      listed.push_back(*at);
      found.erase(at);
    }
  listed.insert(listed.end(), found.begin(), found.end());
  return listed;
}

std::string help(const std::vector<std::string>& commands) {
  std::string text = "Usage: abele COMMAND [options]\n       abele --version\n\n";
  for (const std::string& name : commands) {
    const auto* row = std::find_if(std::begin(kCommands), std::end(kCommands),
                                   [&](const auto& command) { return name == command.name; });
    text += cat("  ", name, std::string(name.size() < 9 ? 9 - name.size() : 1, ' '),
                row != std::end(kCommands) ? row->summary : "", "\n");
  }
  return text += "\nabele COMMAND --help says more.\n";
}

int run(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "--help";
  if (first == "--version" || first == "-V") {
    std::cout << "abele " << versionText() << "\n";
    return 0;
  }
  const fs::path here = folder();
  const std::vector<std::string> commands = commandsIn(here);
  if (first == "--help" || first == "-h" || (first == "help" && argc == 2)) {
    std::cout << help(commands);
    return argc > 1 ? 0 : 2;
  }
  if (first == "help") {  // `help NAME` is `NAME --help`
    argv[1] = argv[2];
    argv[2] = const_cast<char*>("--help");
    return run(argc, argv);
  }
  if (std::find(commands.begin(), commands.end(), first) == commands.end())
    throwUser(ErrorCode::E0901, {.what = cat("there is no command ", first),
                                 .found = cat("abele in ", here.string()),
                                 .expected = commands.empty() ? "no command is installed here" : oneOf(commands),
                                 .remedy = "abele --help"});
  const std::string program = here / (kPrefix + first);
  argv[1] = const_cast<char*>(program.c_str());
  ::execv(program.c_str(), argv + 1);
  throwUser(ErrorCode::E0901, {.what = cat("cannot start ", program, ": ", std::strerror(errno))});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    if (std::cout.flush()) return status;
    throwUser(ErrorCode::E0901,
              {.what = "standard output cannot be written", .remedy = "write to a disk with space, or an open pipe"});
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

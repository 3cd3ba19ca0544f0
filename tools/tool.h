// Shared by the command-line tools: reading a file as text, refusing arguments, and main().
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/cat.h"
#include "base/error.h"
#include "base/version.h"

namespace abele::tools {

/// Throws E0901. tool: the tool's name.
[[noreturn]] inline void refuse(const std::string& tool, std::string what, std::string expected) {
  throwUser(ErrorCode::E0901,
            {.what = std::move(what), .expected = std::move(expected), .remedy = cat(tool, " --help")});
}

constexpr size_t kMostBytes = size_t{1} << 30;

/// Reads a whole file up to a limit of size, or standard input if it is "-". holds: its expected content, for messages.
/// Throws E0901.
inline std::string readAll(const std::string& tool, const std::string& file, const std::string& holds) {
  if (file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(file, std::ios::binary);
  std::string text;
  std::array<char, 1 << 16> piece{};
  while (in && text.size() <= kMostBytes) {
    in.read(piece.data(), piece.size());  // sets a flag if it cannot read, as for a folder
    text.append(piece.data(), static_cast<size_t>(in.gcount()));
  }
  if (!in.eof() || in.bad())
    refuse(tool, cat("cannot read ", file), cat("a file with ", holds, ", or - for standard input"));
  return text;
}

/// Throws E0901 for more micro-batches than the tables of a schedule have room for. Each factor is 65536 at most.
inline void requireMicroBatches(const std::string& tool, int64_t device_iterations, int64_t accumulation) {
  constexpr int64_t kMost = 1 << 20;
  if (device_iterations * accumulation > kMost)
    refuse(tool, cat(device_iterations, " device iterations of ", accumulation, " micro-batches"),
           cat("at most ", kMost, " micro-batches in a step"));
}

/// Throws E0901 if the output could not be written, so that a lost result is reported.
inline void requireWritten(const std::string& tool) {
  if (!std::cout.flush()) refuse(tool, "standard output cannot be written", "a disk with space, or an open pipe");
}

/// Reads the command line and runs the tool. Returns its exit status; prints errors of Abele's own.
template <class Run>
int runTool(CLI::App& app, int argc, char** argv, const Run& run) {
  app.set_version_flag("--version", cat(app.get_name(), " ", versionText()));
  try {
    try {
      app.parse(argc, argv);
      run();
    } catch (const CLI::Success& shown) {  // --help, --version
      app.exit(shown);
    }
    requireWritten(app.get_name());
  } catch (const CLI::ParseError& error) {
    const UserError refused(ErrorCode::E0901, {.what = error.what(), .remedy = cat(app.get_name(), " --help")});
    std::cerr << refused.what() << "\n";
    return 1;
  } catch (const Error& error) {
    std::cout.flush();
    std::cerr << error.what() << "\n";
    return 1;
  } catch (const std::exception& error) {  // such as std::bad_alloc
    std::cout.flush();
    std::cerr << app.get_name() << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace abele::tools

// `abele report`: turns a trace into a page that needs no network. Docs: docs/guide/looking_inside.md.
#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "abele/abele.h"
#include "output.h"

int main(int argc, char** argv) {
  std::string trace, out;
  CLI::App app("Writes a trace as one HTML page: timeline, times by action, and where the time goes.", "abele report");
  app.footer("In a program, report(path) of a model writes one with memory, stages and advice, too.");
  app.add_option("RUN", trace, "what trace(path) of a model or PVTI_OPTIONS wrote")->required();
  app.add_option("-o,--out", out, "the page; default: RUN with .html in place of its suffix");
  try {
    app.parse(argc, argv);
    if (out.empty()) out = std::filesystem::path(trace).replace_extension(".html");
    abele::writeReport(out, trace);
    std::cout << out << "\n";
    return statusOfWritten(0);
  } catch (const CLI::Success& shown) {  // --help
    return app.exit(shown);
  } catch (const CLI::ParseError& error) {
    std::cerr
        << abele::UserError(abele::ErrorCode::E0901, {.what = error.what(), .remedy = "abele report --help"}).what()
        << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}

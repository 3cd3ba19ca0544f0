# abele_libtorch: headers and libraries of the LibTorch inside the chosen interpreter's torch package.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
                OUTPUT_VARIABLE ABELE_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
add_library(abele_libtorch INTERFACE)
target_include_directories(abele_libtorch SYSTEM INTERFACE
  $<BUILD_INTERFACE:${ABELE_TORCH_DIR}/include> $<BUILD_INTERFACE:${ABELE_TORCH_DIR}/include/torch/csrc/api/include>)
target_link_directories(abele_libtorch INTERFACE $<BUILD_INTERFACE:${ABELE_TORCH_DIR}/lib>)
target_link_libraries(abele_libtorch INTERFACE torch torch_cpu c10)
list(APPEND CMAKE_BUILD_RPATH ${ABELE_TORCH_DIR}/lib)
# g++ 12 sees overflows that cannot happen where it inlines c10::intrusive_ptr; -isystem does not silence these.
target_compile_options(abele_libtorch INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)

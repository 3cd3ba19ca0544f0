# cmake --install: libabele, the public headers, and the package that find_package(Abele) finds. docs/cpp.md shows its use.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
if(SKBUILD)
  # A wheel: all of it is in the Python package, beside the installed torch package.
  set(component python)
  set(library_dir abele)
  set(include_dir abele/include)
  set(package_dir abele/share/cmake/Abele)
  set(installed_torch "\${PACKAGE_PREFIX_DIR}/torch")
  set(torch_from_library "$ORIGIN/../torch")
else()
  set(component cpp)
  set(library_dir ${CMAKE_INSTALL_LIBDIR})
  set(include_dir ${CMAKE_INSTALL_INCLUDEDIR})
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Abele)
  set(installed_torch ${ABELE_TORCH_DIR})
  set(torch_from_library ${ABELE_TORCH_DIR})
endif()

# A program brings its own LibTorch target, which AbeleConfig.cmake finds.
set_target_properties(abele PROPERTIES EXPORT_NAME abele INSTALL_RPATH "$ORIGIN;${torch_from_library}/lib")
target_include_directories(abele INTERFACE $<INSTALL_INTERFACE:${include_dir}>)
install(TARGETS abele EXPORT AbeleTargets LIBRARY DESTINATION ${library_dir} COMPONENT ${component})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/abele DESTINATION ${include_dir} COMPONENT ${component})
if(SKBUILD AND TARGET abele_python)
  set_target_properties(abele_python PROPERTIES INSTALL_RPATH "$ORIGIN;${torch_from_library}/lib")
  install(TARGETS abele_python LIBRARY DESTINATION ${library_dir} COMPONENT ${component})
endif()

install(EXPORT AbeleTargets NAMESPACE abele:: DESTINATION ${package_dir} COMPONENT ${component})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/AbeleConfig.cmake.in ${CMAKE_BINARY_DIR}/AbeleConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/AbeleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/AbeleConfig.cmake ${CMAKE_BINARY_DIR}/AbeleConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT ${component})

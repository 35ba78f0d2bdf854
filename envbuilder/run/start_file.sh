# In an environment, shells read this file in place of your ~/.bashrc and ~/.profile, which may start another Python.
case $- in *i*) [ ! -r ~/.envbuilder/bashrc ] || . ~/.envbuilder/bashrc ;; esac
